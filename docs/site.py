"""Hooks of mkdocs: pages keep the repository's paths, so that a link works on GitHub and here."""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = (
    *("*.md", "docs/**/*", "convert/**/*.md", "app/embedded_models/*/README.md"),
    *(
        "benchmarks/results/**/*",
        "benchmarks/*.md",
        "mlx_gateloop/configs/*",
        "mlx_gateloop/train/config.py",
    ),
    *("mlx_gateloop/model/*.py", "mlx_gateloop/ops/gpu/kernels.py", "app/*.py", "app/server/*.py"),
    *("app/generation/run.py", "mlx_gateloop/ops/over_ranks.py"),
)
CODE = {".py": "python", ".yaml": "yaml"}  # shown as pages
FIRST = "README.md"  # what a visitor of the site sees first
FRAME = """<iframe src="docs/shared/model.html"
 title="A model that runs in this page, and the words that it forgets"
 sandbox="allow-scripts" loading="lazy" style="width:100%;height:46rem;border:0"></iframe>
"""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of docs/, at their short paths, by the repository's."""
    for file in list(files):
        if Path(file.abs_src_path or "").is_relative_to(ROOT / "docs"):
            files.remove(file)
    for path in sorted({path for pattern in SHOWN for path in ROOT.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in CODE:
                code = f"````{CODE[path.suffix]}\n{path.read_text('utf-8')}````"
                text = f"---\nhide: [toc]\n---\n\n# {path.name}\n\n{code}\n"
                files.append(File.generated(config, f"{name}.md", content=text))
            else:
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lead links to code to its page."""
    return re.sub(r"(\]\((?!https?:)[^)\s]+\.(?:py|yaml))\)", r"\1.md)", markdown)


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Show a model on the first page, and turn formulas into MathML, which needs no script."""

    def as_mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        mathml = convert(html.unescape(found[2]), display=display)
        if "\\" in mathml:
            raise PluginError(f"not known to latex2mathml: {found[2]}")
        return mathml

    if page.file.src_uri == FIRST:
        content = content.replace("<p><img", f"{FRAME}<p><img", 1)
    return FORMULA.sub(as_mathml, content)
