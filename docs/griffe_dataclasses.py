"""An extension of griffe, which makes the API pages from docstrings."""

from typing import Any

import griffe

STANDARD = "dataclasses.dataclass"


class PydanticDataclasses(griffe.Extension):
    """Reads pydantic's dataclasses as the standard library's."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Give the imported decorator the name that griffe knows."""
        if mod.imports.get("dataclass") == f"pydantic.{STANDARD}":
            mod.imports["dataclass"] = STANDARD
            mod.set_member("dataclass", griffe.Alias("dataclass", STANDARD))
