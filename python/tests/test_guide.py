"""The blocks of the guide run as they stand, one after the other."""

import re
from pathlib import Path

from conftest import require

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python.md"


def test_the_guide(location, tmp_path, monkeypatch):
    require("pandas")
    require("fsspec").register_implementation("outrigger", "outrigger.fsspec.OutriggerFileSystem", clobber=True)
    monkeypatch.setenv("OUTRIGGER_STORE", location)
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Path("results/loss.csv").write_text("step,loss\n1,0.5\n")
    Path("results/weights.bin").write_bytes(bytes(2048))
    text = re.sub(r"<!-- by hand:[^>]*-->\n```.*?```", "", GUIDE.read_text(), flags=re.DOTALL)
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) > 5
    names = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    assert names["header"] == "step,loss\n" and len(names["tail"]) == 16
    assert names["then"] == b"learning rate 0.1\n" and len(names["versions"]) == 1
    assert names["past"].equals(names["frame"]) and len(names["store"].ls("sorted")) == 100
