"""Publishing of a release: a card for its address is uploaded, and the folder stays as it is, whatever breaks off."""

import errno
from dataclasses import asdict
from pathlib import Path

import huggingface_hub
import pytest

from longmlm.errors import ReleaseError
from longmlm.folders import MANIFEST, new_folder, verify
from longmlm.release.build import CARD_CODE
from longmlm.release.publishing import addressed_copy, publish_release
from longmlm.reports.card_code import Address, CardCode, LoadingCode
from longmlm.settings.publishing import Target, parse_target
from tests.support.served import CARD, NAME, Served, content

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's use of httpx2
both_hubs = pytest.mark.parametrize("served", ["hf", "ms"], indirect=True)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A sealed folder with a card whose code loads it."""
    code = CardCode(Address("tiny"), (LoadingCode("load_model.md"),))
    card = f"{CARD.split('```')[0]}# tiny\n## Use\n{code.codes[0].on_card(code.address)}"
    with new_folder(tmp_path / "tiny", {CARD_CODE: asdict(code)}) as partial:
        (partial / "README.md").write_text(card)
        (partial / "config.json").write_text("{}")
        (partial / "onnx").mkdir()
        (partial / "onnx" / "model.onnx").write_bytes(b"weights")
    return tmp_path / "tiny"


def test_card_loads_the_model_from_where_it_was_published(release: Path) -> None:
    for target, said in {
        f"hf:{NAME}@step-7": f'model="{NAME}", revision="step-7")',
        f"ms:{NAME}": f'download_repo("{NAME}", "model")',
        "s3://bucket/tiny": 'model="tiny")',
        f"hf:{NAME}": f'model="{NAME}")',
    }.items():
        with addressed_copy(release, parse_target(target)) as copy:
            card = (copy / "README.md").read_text()
            assert said in card
            assert ("modelscope" in card) == target.startswith("ms")
            assert huggingface_hub.ModelCard.load(copy / "README.md").data.license == "mit"
            assert card.split("```")[0] == (release / "README.md").read_text().split("```")[0]
            assert verify(copy)["files"].keys() == verify(release)["files"].keys()
            with addressed_copy(copy, parse_target("hf:owner/next")) as again:  # as who downloads it may publish it
                assert 'model="owner/next")' in (again / "README.md").read_text()


STEPS = ("link_or_copy", "entry_of", "write_json", "publish", "addressed_card", "check_publishable")


@pytest.mark.parametrize("step", [*STEPS, "upload"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_publication_that_breaks_off_leaves_the_release_sound(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    target, before = parse_target(f"folder:{tmp_path}/copy"), content(release)
    with monkeypatch.context() as patch:
        patch.setattr(
            f"longmlm.hubs.storage.{step}" if step == "upload" else f"longmlm.release.publishing.{step}", fail
        )
        with pytest.raises((OSError, KeyboardInterrupt, ReleaseError)):
            publish_release(release, "Release", target)
    assert content(release) == before
    verify(release)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    publish_release(release, "Release", target)
    assert content(release) == before
    assert content(tmp_path / "copy").keys() == before.keys()
    assert verify(tmp_path / "copy")[CARD_CODE] == verify(release)[CARD_CODE]


@both_hubs
def test_release_stays_as_it_is_when_it_is_published(
    served: Served, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(release)
    (release / ".env").write_text("secret")
    for _ in range(2):
        publish_release(release, "Release", Target(served.name, NAME))
        assert capsys.readouterr().out.splitlines()[0].endswith("does not list .env")
    uploaded = served.files()
    assert uploaded.keys() == verify(release)["files"].keys() | {MANIFEST}
    assert content(release) == before | {".env": b"secret"}
    assert NAME.encode() in uploaded["README.md"]
    assert served.count("commit") == 1
