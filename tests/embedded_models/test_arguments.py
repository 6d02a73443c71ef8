"""The paths of the commands that build the embedded models."""

from helpers.errors import refusal

from benchmarks.embedded_models.arguments import check_own


def test_a_folder_of_others_is_refused(tmp_path):
    check_own(tmp_path / "new", "a")
    check_own(tmp_path, "a")
    (tmp_path / "a").write_text("")
    (tmp_path / ".left-by-a-killed-process").write_text("")
    check_own(tmp_path, "a", "b")
    assert "a: a file; give another folder" in refusal(check_own, tmp_path / "a", "a")
    (tmp_path / "c").write_text("")
    assert "holds c; give a folder of its own" in refusal(check_own, tmp_path, "a", "b")
