"""A release that is made again: what it replaces, and what stays when it breaks off."""

import errno
import itertools
import pydoc
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from longmlm.artifacts import artifact
from longmlm.artifacts.provenance import ModelSource, Provenance
from longmlm.artifacts.run import CheckpointState, Continuation, TrainState
from longmlm.errors import FolderError, ReleaseError
from longmlm.folders import verify
from longmlm.release import build
from longmlm.settings.pretrain import PretrainRecipe
from longmlm.settings.release import ReleaseCard, ReleaseConfig, ReleaseRecipe
from longmlm.stages import release as release_stage
from longmlm.stages.release import release
from tests.support.served import content
from tests.support.tiny import World, release_settings

Run = Callable[..., tuple[int, str, str]]


def test_a_release_of_the_same_model_is_replaced_and_nothing_else_is(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, given = tmp_path / "out", release_settings(world, evaluation, tmp_path / "out")

    def released(**changes: object) -> tuple[int, str]:
        code, _, warned = run_here(ReleaseConfig, release, {**given, **changes})
        return code, warned

    def titles() -> list[str]:
        return re.findall("^# (.*)", (output / "README.md").read_text(encoding="utf-8"), re.MULTILINE)[:1]

    assert (released(), titles()) == ((0, ""), ["tiny"])
    retitled = {"card": given["card"] | {"title": "Another", "languages": ["zh"]}}
    assert (released(**retitled), titles()) == ((0, ""), ["Another"])
    verify(output)
    assert "今天天气很" in (output / "README.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out"]
    with monkeypatch.context() as patch:
        patch.setattr(build, "prove", lambda *_: happen())
        assert (released()[0], titles()) == (2, ["Another"])
    (output / "notes.txt").write_text("mine")
    code, warned = released()
    assert code == 2 and f"added to it lost ({output}/manifest.json does not list notes.txt)" in warned
    (output / "notes.txt").unlink()
    (output / "README.md").write_text("# Mine\n", encoding="utf-8")
    assert (released()[0], titles()) == (2, ["Mine"])


def started_from(base: str) -> Provenance:
    return Provenance().of_run(ModelSource(name=base))


@pytest.mark.parametrize(
    ("is_continued", "changed", "is_replaced"),
    [(True, {}, True), (False, {}, False), (True, {"rows": "other"}, False), (True, {"base": "other"}, False)],
)
def test_a_release_from_before_steps_were_added_is_replaced(
    tmp_path: Path, is_continued: bool, changed: dict[str, Any], is_replaced: bool
) -> None:
    settings = build.ReleaseSettings(ReleaseRecipe(), ReleaseCard(title="tiny"), tmp_path / "out")
    with build.new_release(settings, {"model": "before", "rows": "rows"}, started_from("base")) as folder:
        (folder / "README.md").write_text("before", encoding="utf-8")
    contents = {"model": "after", "rows": changed.get("rows", "rows")}
    about = started_from(changed.get("base", "base"))
    refused = pytest.raises(FolderError, match="holds no release of this model")
    with (
        nullcontext() if is_replaced else refused,
        build.new_release(settings, contents, about, is_continued) as folder,
    ):
        (folder / "README.md").write_text("after", encoding="utf-8")
    verify(tmp_path / "out")
    assert (tmp_path / "out/README.md").read_text(encoding="utf-8") == ("after" if is_replaced else "before")


@pytest.mark.parametrize("added", [(), (Continuation(from_step=4, num_steps=2),)])
def test_the_checkpoint_tells_whether_steps_were_added(tmp_path: Path, added: tuple[Continuation, ...]) -> None:
    assert not build.has_added_steps(tmp_path)
    recipe = PretrainRecipe(num_steps=4, batch_tokens=8, learning_rate=1e-4, warmup_steps=0)
    saved = CheckpointState(state=TrainState(step=4), recipe=recipe, rows_sha256="", continuations=added)
    artifact.write(tmp_path / CheckpointState.FILE, saved)
    assert build.has_added_steps(tmp_path) == bool(added)


def test_a_card_is_for_one_address_and_a_release_for_another_is_written_anew(
    world: World, evaluation: Path, tmp_path: Path, run_here: Run, here: None
) -> None:
    given = release_settings(world, evaluation, tmp_path / "out")
    output, said = tmp_path / "out", []

    def released(**publishing: str) -> str:
        code, lines, warned = run_here(ReleaseConfig, release, {**given, **publishing})
        assert (code, warned) == (0, "")
        said.append(lines)
        verify(output)
        return (output / "README.md").read_text(encoding="utf-8")

    here_alone = released()
    assert 'model="out")' in here_alone
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_stage, "publish", lambda folder, *_: f"the hub, with {len(content(folder))} files")
        on_hub = released(publish="hf:owner/tiny", revision="v1")
        assert on_hub == here_alone.replace('model="out")', 'model="owner/tiny", revision="v1")')
        assert "replaced the earlier release" in said[-1]
        assert released(publish="hf:owner/tiny", revision="v1") == on_hub
        assert said[-1] == f"published: the hub, with {len(content(output))} files\n"
    (output / ".env").write_text("mine")
    assert released() == on_hub, "without a target, any address is right"
    assert "already holds this release" in said[-1] and "manifest.json does not list .env" in said[-1]
    (output / ".env").unlink()
    before = content(output)
    assert released(publish=f"folder:{tmp_path}/copy") == here_alone
    assert content(tmp_path / "copy") == content(output)
    assert [name for name in before if content(output)[name] != before[name]] == ["README.md", "manifest.json"]


ERRORS = OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()
WRITES = {
    "longmlm.release.build.export": 1,
    "longmlm.release.build.prove": 1,
    "longmlm.artifacts.artifact.write": 1,
    "shutil.copy": 1,
    "longmlm.folders.write_json": 1,
    "pathlib.Path.rename": 1,
    "pathlib.Path.rename, the second": 2,
}


@pytest.mark.parametrize(("write", "error"), list(zip(WRITES, itertools.cycle(ERRORS), strict=False)))
def test_a_release_that_breaks_off_at_any_write_leaves_the_earlier_one_intact(
    write: str, error: BaseException, released_once: Path, world: World, evaluation: Path, here: None
) -> None:
    before, calls = content(released_once), []
    asked = release_settings(world, evaluation, released_once)
    config = ReleaseConfig(**{**asked, "card": ReleaseCard(title="Another", license="mit")})
    with pytest.MonkeyPatch.context() as patch:
        name = write.partition(",")[0]
        original = pydoc.locate(name)

        def fail(*arguments: Any, **options: Any) -> Any:
            calls.append(arguments)
            if len(calls) == WRITES[write]:
                raise error
            return original(*arguments, **options)

        patch.setattr(name, fail)
        with pytest.raises((OSError, KeyboardInterrupt)):
            release(config)
    assert content(released_once) == before
    verify(released_once)
    assert [path.name for path in released_once.parent.iterdir()] == [released_once.name]


def happen() -> None:
    raise ReleaseError("the files differ")
