"""An enlarged model computes the same function: every axis padded, every architecture, and planted faults."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from codespec.cli.options import SETTINGS
from codespec.contract.engine_config import SHAPES as CHOSEN
from codespec.contract.engine_config import SHIPPED
from codespec.contract.types import CompletionRequest
from codespec.engine.build import build_engine
from codespec.errors import ModelError
from codespec.models import enlarge as enlarging
from codespec.models import linear
from codespec.models.enlarge import SHAPES, Axes, Shape
from codespec.models.language_model import LanguageModel
from codespec.models.linear import weight_and_bias
from codespec.models.loader import load_model, model_facts
from codespec.models.rows import Rows
from codespec.models.transformers_loader import wrap
from codespec.store.choice import resolve_engine
from tests.kin import sibling
from tests.models.test_loader import save
from tests.pairs import build, network_for, run, texts, total, varied_requests
from tests.tiny_models import sample_ids, tiny_network
from tests.toy_tokenizers import toy_tokenizer

VOCABULARY = 512
# From two key heads of 32 with two query heads each: one more key head, two more query heads for each, all else wider.
TOY = Shape("toy", hidden=200, layers=4, query=384, keys=96, inner=300, vocabulary=700, tied=True)
EPS = 0.3  # large enough to matter for these models' rows
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rotary by length": (
        "llama",
        {"rope_parameters": DYNAMIC},
    ),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}
BILLIONS = {"0.5b": 0.494032768, "1.5b": 1.543714304, "7b": 7.615616512, "32b": 32.763876352}


def pair_of(case: str, shape: Shape = TOY, **more: Any) -> tuple[LanguageModel, LanguageModel]:
    """Return a tiny model and its enlarged version."""
    architecture, change = CASES[case]
    changes = {"rms_norm_eps": EPS, **change}
    return behind_the_seam(tiny_network(architecture, **changes), **more), behind_the_seam(
        tiny_network(architecture, **changes), shape=shape, **more
    )


def behind_the_seam(network: Any, shape: Shape | None = None, **more: Any) -> LanguageModel:
    wrapped: LanguageModel = wrap(
        network, None, "tiny", device=torch.device("cpu"), dtype=network.dtype, exact=True, shape=shape, **more
    )
    return wrapped


def ragged_logits(model: LanguageModel) -> Tensor:
    """Return the logits of three sequences of different lengths in one forward, then of rows after each, with a
    rejection.
    """
    model.allocate(3, 96)
    ids = [sample_ids(80, seed) for seed in range(3)]
    for slot in range(3):
        model.admit(slot, 96)
    first = model.forward([Rows(slot, 0, ids[slot][:n], keep=n) for slot, n in enumerate((40, 9, 23))])
    model.rollback(0, 37)
    behind = [Rows(slot, at, ids[slot][at : at + n], keep=n) for slot, at, n in ((2, 23, 5), (0, 37, 1), (1, 9, 40))]
    return torch.cat([first, model.forward(behind)])


def gap(small: LanguageModel, large: LanguageModel) -> float:
    """Return the largest difference of logits, or infinity if a padding id could be chosen."""
    wanted, got = ragged_logits(small), ragged_logits(large)
    own, padding = got[:, : wanted.shape[1]], got[:, wanted.shape[1] :]
    assert wanted.std() > 0.1
    return float((own - wanted).abs().max()) if bool((padding == -torch.inf).all()) else torch.inf


@pytest.mark.parametrize("case", CASES)
def test_the_same_function(case: str) -> None:
    small, large = pair_of(case)
    assert gap(small, large) <= 1e-4
    assert large.spec.lean == small.spec.lean
    assert large.spec.vocab_size == TOY.vocabulary and len(large.shapes) == TOY.layers
    assert {heads * size for heads, size, _ in large.shapes.values()} == {TOY.keys}


def test_the_same_function_in_transformers_own_layers() -> None:
    small, large = pair_of("qwen3", lean=False)
    assert not large.spec.lean and gap(small, large) <= 1e-4


def test_the_same_function_in_bfloat16() -> None:
    networks = [tiny_network("llama", dtype=torch.bfloat16) for _ in range(2)]
    small, large = behind_the_seam(networks[0]), behind_the_seam(networks[1], TOY)
    assert large.spec.dtype == "bfloat16"
    assert gap(small, large) <= 0.1 * float(ragged_logits(small).abs().max())


@settings(max_examples=12)
@given(st.tuples(st.integers(1, 3), st.integers(1, 3)), st.tuples(st.integers(0, 2), st.integers(0, 2)), st.data())
def test_any_sizes(own: tuple[int, int], more: tuple[int, int], data: st.DataObject) -> None:
    keys, groups = own
    extra = {name: data.draw(st.integers(0, 70), label=name) for name in ("hidden", "inner", "vocabulary")}
    kv_heads, shared = keys + more[0], groups + more[1]
    shape = Shape(
        "drawn", 144 + extra["hidden"], 2 + data.draw(st.integers(0, 2)), 16 * kv_heads * shared, 16 * kv_heads,
        256 + extra["inner"], VOCABULARY + extra["vocabulary"], tied=data.draw(st.booleans()),
    )  # fmt: skip
    heads = {"num_key_value_heads": keys, "num_attention_heads": keys * groups, "head_dim": 16, "hidden_size": 144}
    networks = [tiny_network("llama", rms_norm_eps=EPS, **heads) for _ in range(2)]
    assert gap(behind_the_seam(networks[0]), behind_the_seam(networks[1], shape)) <= 1e-4


def forget_eps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enlarging, "_shrink_eps", lambda large, share: None)


def forget_the_norms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enlarging, "NORMS", ())


def mix_the_groups(patch: pytest.MonkeyPatch) -> None:
    """Lay out query heads as if those of one key head were not adjacent."""
    patch.setitem(enlarging.AXES, "q_proj", (("groups", "kv_heads", "head"), ("hidden",)))


def mix_what_heads_say(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(enlarging.AXES, "o_proj", (("hidden",), ("groups", "kv_heads", "head")))


FAULTS = [forget_eps, forget_the_norms, mix_the_groups, mix_what_heads_say]


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert gap(*pair_of("llama")) > 1e-3


@pytest.mark.parametrize("name", SHAPES)
def test_real_sizes(name: str) -> None:
    """The same number of weights as the real model, with biases only in q, k and v, and the same KV cache size."""
    shape = SHAPES[name]
    network = tiny_network("llama", tie_word_embeddings=True, hidden_size=256, head_dim=64)
    large = enlarging.hollow(network, Axes.of(network.config).grown(shape), shape)
    biases = shape.layers * (shape.query + 2 * shape.keys)
    assert sum(p.numel() for p in large.parameters()) == round(1e9 * BILLIONS[name.removeprefix("qwen2.5-")]) - biases
    assert large.config.num_key_value_heads * large.config.head_dim == shape.keys


def test_who_is_simulated_says_so() -> None:
    small, large = pair_of("llama")
    assert (small.spec.simulated, small.spec.notes) == ("", ())
    assert large.spec.simulated == "toy"
    (note,) = large.spec.notes
    assert "toy" in note and "its own texts" in note


# Models that cannot be enlarged


def refusal_of(network: Any, shape: Shape) -> str:
    with pytest.raises(ModelError) as caught:
        enlarging.enlarge(network, shape)
    said = str(caught.value)
    assert "\n" not in said and ": choose" in said and shape.name in said
    return said


@pytest.mark.parametrize("architecture", ["gemma2", "gpt2", "phi3"])
def test_other_architectures(architecture: str) -> None:
    assert "choose a Llama, Mistral, Qwen2 or Qwen3" in refusal_of(tiny_network(architecture), TOY)


@pytest.mark.parametrize(
    ("axis", "change"),
    [
        ("hidden", {"hidden": 127}),
        ("layers", {"layers": 1}),
        ("kv_heads", {"keys": 32, "query": 384}),
        ("groups", {"query": 96}),
        ("inner", {"inner": 255}),
        ("vocabulary", {"vocabulary": 511}),
    ],
)
def test_shapes_that_are_too_small(axis: str, change: dict[str, int]) -> None:
    assert f"smaller than this target ({axis} " in refusal_of(tiny_network("llama"), replace(TOY, **change))


def test_heads_that_do_not_fit() -> None:
    assert "which heads of 32 can't fill" in refusal_of(tiny_network("llama"), replace(TOY, keys=80, query=240))


def test_a_machine_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 1024)
    assert "choose dtype bfloat16 or a smaller target_shape" in refusal_of(tiny_network("llama"), TOY)


def test_plain_weights_are_freed_one_layer_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a model of 15 GB would need 30 while it is packed."""
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def watch(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
        nonlocal most
        alive.append(weakref.ref(layer.weight))  # type: ignore[arg-type]
        most = max(most, sum(weight() is not None for weight in alive))
        return weight_and_bias(layer)

    monkeypatch.setattr(linear, "weight_and_bias", watch)
    behind_the_seam(tiny_network("llama"), replace(TOY, layers=8))
    assert len(alive) == 8 * 4 + 1 and most <= 6


# The engine


KIND = "gpt2"


@pytest.fixture(scope="module")
def enlarged() -> LanguageModel:
    """Return a target with a tokenizer, its vocabulary padded too."""
    tokenizer = toy_tokenizer(KIND)
    shape = replace(TOY, vocabulary=2 * tokenizer.vocab_size)
    torch.set_num_threads(1)
    network = network_for("llama", tokenizer)
    return wrap(network, tokenizer, "llama", device=torch.device("cpu"), dtype=torch.float32, exact=True, shape=shape)


def test_on_equals_off(enlarged: LanguageModel) -> None:
    plain = run(build(enlarged, max_batch=1), varied_requests(), together=False, speculate=False)
    done = run(build(enlarged, drafter=sibling("llama", KIND), draft_tokens=3), varied_requests())
    assert texts(done) == texts(plain)
    stats = total(done)
    assert stats.drafted >= 50 and 0 < stats.accepted < stats.drafted


HOT = CompletionRequest(prefix="import os\n", temperature=2.0, top_k=0, max_tokens=60, n=4, repetition_penalty=1.2)


def chosen(model: LanguageModel) -> list[int]:
    return [token for done in run(build(model), [HOT, replace(HOT, seed=1)]) for token in done.token_ids]


def test_padding_is_never_chosen(enlarged: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    own = enlarged.tokenizer.vocab_size
    ids = chosen(enlarged)
    assert len(ids) >= 100 and max(ids) < own
    monkeypatch.setattr(enlarged, "choosable", enlarged.spec.vocab_size)
    assert max(chosen(enlarged)) >= own, "logits of padding are zeros, which are often chosen unless hidden"


def test_filters_do_not_see_the_padding(enlarged: LanguageModel) -> None:
    """The same ids as the small model's for every request."""
    tokenizer = toy_tokenizer(KIND)
    small = wrap(
        network_for("llama", tokenizer), tokenizer, "llama", device=torch.device("cpu"), dtype=torch.float32, exact=True
    )
    requests = varied_requests(top_k=tokenizer.vocab_size + 7) + varied_requests()
    assert texts(run(build(enlarged), requests)) == texts(run(build(small), requests))


# The setting


def test_the_setting_names_the_shapes() -> None:
    assert ("own", *SHAPES) == CHOSEN
    assert resolve_engine({}, environment={}).target_shape == "own" and "target_shape" in SETTINGS


def test_the_setting_reaches_the_engine(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer_rows = toy_tokenizer(KIND).vocab_size + 4
    monkeypatch.setattr("codespec.startup.parts.SHAPES", {"qwen2.5-0.5b": replace(TOY, vocabulary=tokenizer_rows + 9)})
    folder = str(save(tmp_path / "model"))
    config = resolve_engine({"target": folder, "drafter": "none", "target_shape": "qwen2.5-0.5b"}, environment={})
    engine = build_engine(config)
    assert engine.target.spec.simulated == "toy" and engine.target.choosable == tokenizer_rows
    assert sum("toy" in note for note in engine.notes) == 1


@pytest.mark.usefixtures("converters_in_this_process")
def test_facts_are_of_the_weights_that_were_enlarged(tmp_path: Any) -> None:
    """An enlarged model is made from float weights, in int8 too."""
    folder = str(save(tmp_path / "model"))
    toy = replace(TOY, vocabulary=toy_tokenizer(KIND).vocab_size + 13)
    plain = model_facts(load_model(folder))
    for dtype in ("float32", "int8"):
        large = model_facts(load_model(folder, dtype=dtype, shape=toy))
        assert large["sha256"] == plain["sha256"] and large["parameters"] > plain["parameters"]
    assert model_facts(load_model(folder, dtype="int8"))["sha256"] != plain["sha256"]


def test_the_starter_pair_fits_every_shape() -> None:
    config = load_model(str(SHIPPED / "target")).network.config
    for shape in SHAPES.values():
        grown = Axes.of(config).grown(shape)
        assert (grown.hidden, grown.layers, grown.inner) == (shape.hidden, shape.layers, shape.inner)
        assert (grown.kv_heads * grown.head, grown.kv_heads * grown.groups * grown.head) == (shape.keys, shape.query)
