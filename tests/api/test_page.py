"""What people read of the Python API is true: docstrings, the page about it, types, and an import that is light."""

import doctest
import inspect
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import longmlm
from longmlm.api import models

FUNCTIONS = ("run", "extend", "pack", "mask", "read_rows", "evaluate", "export")
PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_examples_in_the_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names, failures = {}, []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for documented in (models, *(getattr(longmlm, name) for name in FUNCTIONS)):
        example = doctest.DocTestParser().get_doctest(inspect.getdoc(documented), names, documented.__name__, None, 0)
        assert example.examples
        runner.run(example, out=failures.append, clear_globs=False)
        names = example.globs
    assert failures == []
    assert (tmp_path / "long-model" / "config.json").is_file()


def test_the_page_lists_each_function_with_what_it_returns() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in FUNCTIONS:
        function = getattr(longmlm, name)
        assert inspect.getdoc(function).splitlines()[0] in page
        assert all(f"`{parameter}`" in page for parameter in inspect.signature(function).parameters), name


def shortened(code: str, changes: dict[str, str]) -> str:
    for written, shorter in changes.items():
        assert code.count(written) == 1
        code = code.replace(written, shorter)
    return code


def code_blocks() -> list[str]:
    return [block.split("```")[0] for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    in_memory, pipeline, loop = code_blocks()
    names: dict[str, object] = {}
    exec(shortened(in_memory, {"60, 16": "4, 4", "texts[8:]": "texts[8:9]", "texts[:8]": "texts[:2]"}), names)
    measured = [names[name].whole.accuracy for name in ("base_chunks", "before", "after")]
    assert all(map(math.isfinite, measured)) and measured[2] != measured[1]
    assert AutoTokenizer.from_pretrained(tmp_path / "long-model").model_max_length == 384
    names = {}
    short = 'until="extend", extend={"recipe": {"distillation": {"num_tokens": 400, "precision": "no"}}}'
    exec(shortened(pipeline, {'until="extend"': short}), names)
    exec(shortened(loop, {"% 4 ==": "% 2 =="}), names)
    assert names["result"].rows == Path("out/demo/rows") and names["result"].run is None
    assert len(names["losses"]) == 4 and all(map(math.isfinite, names["losses"]))


@pytest.mark.slow
def test_training_in_memory_improves_the_long_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code_blocks()[0], names)
    base_chunks, before, after = (names[name].whole.accuracy for name in ("base_chunks", "before", "after"))
    assert before < base_chunks and before < after


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import longmlm; assert set(longmlm.__all__) < set(dir(longmlm));"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names;"
        "assert loaded == {'longmlm'}, loaded; print(*longmlm.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert sorted(done.stdout.split()) == sorted(FUNCTIONS)
    with pytest.raises(AttributeError, match="has no attribute 'train'"):
        _ = longmlm.train


def test_type_checkers_see_the_functions(tmp_path: Path) -> None:
    """A call that is right has no error; a misspelt name, a wrong type and an unknown function have one each."""
    lines = {
        "rows: list[Row] = longmlm.pack(['a'], tokenizer, 16)": None,
        "longmlm.extend('x', '1536')": "bad-argument-type",
        "longmlm.extend('x', 1536, initialisation='hierarchic')": "bad-argument-type",
        "longmlm.extent('x', 1536)": "missing-attribute",
    }
    head = "import longmlm\nfrom longmlm.data.rows import Row\nfrom transformers import PreTrainedTokenizerBase\n"
    script = tmp_path / "calls.py"
    script.write_text("\n".join([f"{head}tokenizer = PreTrainedTokenizerBase()", *lines]) + "\n")
    source = Path(longmlm.__file__).parents[1]
    command = ["pyrefly", "check", "--preset", "default", "--search-path", str(source), "--output-format", "min-text"]
    done = subprocess.run([*command, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = dict(re.findall(r"calls\.py:(\d+):.*\[([\w-]+)\]", done.stdout))
    assert found == {str(number): problem for number, problem in enumerate(lines.values(), start=5) if problem}
