"""Families, tied and untied: each damaged weight is named in one line, and each option of extend works."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from longmlm.errors import ModelError, UserError
from longmlm.model.loading import load_model
from longmlm.settings.extend import ExtendConfig, ExtendRecipe
from longmlm.stages.extend import extend
from tests.support.families import NUM_POSITIONS, SPECIAL, tiny_model
from tests.support.tiny import LONG_POSITIONS, tiny_folder

WEIGHTS = "model.safetensors"
QUICK = (("bert", 0, True), ("bert", 0, False), ("roberta", 1, False))  # the other families in the slow tests
FAMILIES = [pair for pair in SPECIAL if pair != ("roberta", 3)]
OTHERS = [(*pair, is_tied) for pair in FAMILIES for is_tied in (True, False) if (*pair, is_tied) not in QUICK]
KINDS = [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)]
OPTIONS: dict[str, dict[str, object]] = {
    **{name: {"initialisation": name} for name in ("hierarchical", "tile", "fitted")},
    "generated": {"initialisation": "hierarchical", "mode": "generated"},
    "window": {"initialisation": "tile", "attention_window": 4},
    "tokens": {"add_tokens": "terms.txt", "initialisation": "hierarchical"},
    "head": {"new_head": True},
}
OF_EACH_KIND = [  # every option of one kind, and two of each other kind in turn
    (kind, option)
    for number, kind in enumerate((*QUICK, *OTHERS))
    for option in ([*OPTIONS] if number == 0 else [[*OPTIONS][(2 * number + more) % len(OPTIONS)] for more in range(2)])
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}-{'tied' if kind[2] else 'untied'}")
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model of the family, whose decoder is the word embedding or a matrix of its own."""
    family, pad, is_tied = request.param
    folder = tiny_folder(tmp_path_factory.mktemp(family) / "base", family, pad)
    if not is_tied:
        model = tiny_model(family, pad)
        decoder = model.get_output_embeddings().weight
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        parameters = model.named_parameters(remove_duplicate=False)
        (own,) = (name for name, weight in parameters if weight is decoder and "word_embeddings" not in name)
        state[own] += 0.5
        save_file(state, folder / WEIGHTS, {"format": "pt"})
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}), encoding="utf-8")
    return folder


def damages(weight: Tensor) -> Iterator[Tensor | None]:
    """Yields the weight removed, with other shapes, and with numbers of another kind."""
    yield None
    yield weight[:-1].clone()
    yield weight[None].clone()
    yield weight.to(torch.int32)
    yield torch.zeros(())
    if weight.dim() > 1:
        yield weight[:, :-1].clone()


def outside_layers(folder: Path) -> list[str]:
    """Returns the names of the weights of embeddings and MLM head."""
    return sorted(name for name in load_file(folder / WEIGHTS) if ".layer." not in name and "_layers." not in name)


def check_refused(base: Path, folder: Path, name: str, weight: Tensor | None) -> None:
    """Checks that a damage is named, or that a bias which is stored twice is taken from the other place."""
    shutil.copytree(base, folder, dirs_exist_ok=True)
    weights = load_file(base / WEIGHTS) | ({} if weight is None else {name: weight})
    save_file({key: weights[key] for key in weights if key != name or weight is not None}, folder / WEIGHTS)
    twins = {name, f"{name.removesuffix('bias')}decoder.bias"} & set(outside_layers(base))
    if weight is None and any(twin.endswith("decoder.bias") for twin in twins):
        load_model(str(folder))
        return
    with pytest.raises(ModelError, match=r"\.".join(name.split(".")[:-1])) as error:
        load_model(str(folder))
    assert "\n" not in str(error.value)


def test_a_damaged_weight_is_named(base: Path, tmp_path: Path) -> None:
    """Each weight in one way, the ways in turn."""
    weights = load_file(base / WEIGHTS)
    for number, name in enumerate(outside_layers(base)):
        ways = list(damages(weights[name]))
        check_refused(base, tmp_path / "damaged", name, ways[number % len(ways)])


@pytest.mark.slow
def test_a_weight_damaged_in_any_way_is_named(base: Path, tmp_path: Path) -> None:
    for name, weight in load_file(base / WEIGHTS).items():
        for way in damages(weight):
            if name in outside_layers(base) or way is not None:
                check_refused(base, tmp_path / "damaged", name, way)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "option"), OF_EACH_KIND, indirect=["base"])
def test_every_option_of_extend_gives_a_model_that_loads(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.txt").write_text("zyxwv\nqqqq\n", encoding="utf-8")
    model, settings = str(base), OPTIONS[option]
    if option == "head":
        head = [name for name in outside_layers(base) if "embedding" not in name]
        model = shutil.copytree(base, "headless")
        kept = {name: weight for name, weight in load_file(base / WEIGHTS).items() if name not in head}
        save_file(kept, Path(model) / WEIGHTS)
    recipe = ExtendRecipe(num_positions=LONG_POSITIONS, **settings)
    try:
        extend(ExtendConfig(base=model, output="long", recipe=recipe))
    except UserError as error:
        pytest.fail(str(error))
    long = load_model("long").model
    base_model = load_model(model, new_head=option == "head").model
    ids = torch.arange(5, 5 + NUM_POSITIONS)[None]
    with torch.no_grad():
        logits, before = long(ids).logits, base_model(ids).logits
        assert long(torch.arange(5, 5 + LONG_POSITIONS)[None]).logits.isfinite().all()
    if option in ("hierarchical", "tile", "generated", "tokens"):  # fitted changes trained rows
        assert torch.allclose(logits[..., : before.shape[-1]], before, atol=1e-4)
