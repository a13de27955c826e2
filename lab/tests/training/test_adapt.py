"""`codespec train adapt`: the choice of sentinels, the cuts, learning, and resuming to the same bits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from codespec_lab.corpus.documents import Document
from codespec_lab.training.adapt import AdaptRecipe, AdaptRun, adapt
from codespec_lab.training.adapt_samples import AdaptStream, Sentinels, choose_sentinels, fim_sample, initial_vectors
from codespec_lab.training.distill.places import Cut, cut_where_edited
from codespec_lab.training.lora_model import LoraModel, read_adapter
from codespec_lab.training.run import Budget, save_checkpoint
from codespec_lab.training.tokenizer_training import save_tokenizer
from peft import PeftModel
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from codespec.backends.torch.merge_adapter import merge
from codespec.errors import TrainingError
from codespec.text.fim_templates import FimTemplate, find_template
from codespec.text.tokenizer import TextTokenizer

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
UNUSED = [f"<issue_{name}>" for name in ("start", "comment", "closed", "open", "spare")]
STEPS, ROWS, LENGTH = 12, 4, 128


@pytest.fixture(scope="module")
def plain(tokenizers: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied two-layer model with five tokens that it never learned."""
    folder = tmp_path_factory.mktemp("plain")
    tokenizer = Tokenizer.from_str(tokenizers["target"].to_str())
    tokenizer.add_special_tokens(UNUSED)
    save_tokenizer(tokenizer, folder, 512)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings = {key: value for key, value in settings.items() if not key.startswith(("fim_", "codespec_"))}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(0)
    shape = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2)
    config = LlamaConfig(
        **shape,
        num_key_value_heads=1,
        vocab_size=tokenizer.get_vocab_size(),
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id("<|endoftext|>"),
    )
    network = LlamaForCausalLM(config)
    table = network.get_input_embeddings().weight
    with torch.no_grad():
        table[[tokenizer.token_to_id(name) for name in UNUSED]] = table[0].clone()
    network.save_pretrained(folder)
    return folder


def make(folder: Path, **more: object) -> LoraModel:
    return LoraModel(str(folder), **{"rank": 4, "dtype": "float32", **more})  # type: ignore[arg-type]


def recipe(steps: int = STEPS) -> AdaptRecipe:
    return AdaptRecipe(Budget(steps=steps), rate=1e-2, rows=ROWS, length=LENGTH, warmup_steps=2, checkpoint_seconds=0.0)


def test_the_last_tokens_that_were_never_learned_mark(plain: Path) -> None:
    model = make(plain)
    assert [model.tokenizer.vocab[name] for name in UNUSED[1:]] == list(model.sentinels.ids)
    named = choose_sentinels(model.tokenizer, torch.randn(600, 8), UNUSED[:4])
    assert named.ids == tuple(model.tokenizer.vocab[name] for name in UNUSED[:4])


def test_where_no_four_are_left_one_sentence_says_what_to_do(plain: Path) -> None:
    tokenizer = TextTokenizer.from_folder(plain)
    table = torch.randn(tokenizer.vocab_size, 8)
    with pytest.raises(TrainingError, match=r"has 0 control tokens .* --sentinels\.$"):
        choose_sentinels(tokenizer, table)
    with pytest.raises(TrainingError, match="'<no>' is not in the vocabulary"):
        choose_sentinels(tokenizer, table, ["<no>", *UNUSED[:3]])
    with pytest.raises(TrainingError, match="3 were named"):
        choose_sentinels(tokenizer, table, UNUSED[:3])


def test_the_vectors_to_begin_with_differ_and_the_end_is_known(plain: Path) -> None:
    table = torch.randn(600, 64)
    rows = initial_vectors(table, Sentinels(1, 2, 3, 4), [7], seed=0)
    apart = torch.nn.functional.normalize(rows, dim=1)
    assert (apart @ apart.T - torch.eye(4)).abs().max() < 0.6
    assert torch.equal(rows[3], table[7])


def test_cuts_are_places_where_people_edit(long_text: str) -> None:
    rng = np.random.default_rng(0)
    kinds = Counter[str]()
    for _ in range(400):
        cut = cut_where_edited(long_text, rng)
        assert cut.prefix + cut.middle + cut.suffix == long_text
        assert cut.suffix == "" or cut.suffix.startswith("\n")
        begins = cut.prefix.rpartition("\n")[2].strip() == ""
        kinds["lines" if "\n" in cut.middle else "line" if begins else "rest"] += 1
    assert all(kinds[kind] > 60 for kind in ("lines", "line", "rest")), kinds
    assert cut_where_edited("x", rng).middle == "x"


@pytest.mark.parametrize("order", ["spm", "psm"])
def test_a_sample_is_the_cut_in_order_and_only_the_middle_counts(plain: Path, order: str) -> None:
    model = make(plain)
    tokenizer, marks = model.tokenizer, model.sentinels
    cut = Cut("def f(x):\n    ", "return x + 1", "\n\n\ndef g(y):\n    pass\n")
    sample = fim_sample(cut, tokenizer, marks, 200, order)
    spelled = [tokenizer.encode_inside(part) for part in (cut.prefix, cut.suffix, cut.middle)]
    before, behind, middle = spelled
    expected = (
        [marks.prefix, marks.suffix, *behind, marks.middle, *before]
        if order == "spm"
        else [marks.prefix, *before, marks.suffix, *behind, marks.middle]
    )
    assert sample.ids == [*expected, *middle, marks.end]
    assert sample.weights[: len(expected)] == [0.0] * len(expected) and min(sample.weights[len(expected) :]) > 0
    context = fim_sample(cut, tokenizer, marks, 200, order, prefix_weight=0.25)
    counted = [number for number, weight in zip(context.ids, context.weights, strict=True) if weight == 0.25]
    assert counted == (before[1:] if order == "spm" else []), "a prefix with the suffix in sight"
    assert context.weights[len(expected) :] == sample.weights[len(expected) :]


def test_what_does_not_fit_loses_its_far_ends(plain: Path, long_text: str) -> None:
    model = make(plain)
    tokenizer, marks = model.tokenizer, model.sentinels
    cut = Cut(long_text[:2000], long_text[2000:2020], long_text[2020:])
    sample = fim_sample(cut, tokenizer, marks, 100, "spm")
    assert len(sample.ids) == 100 and sample.ids[-1] == marks.end
    at = sample.ids.index(marks.middle)
    assert long_text.encode().find(tokenizer.decode_bytes(sample.ids[at + 1 : -1])) > 1000
    assert cut.suffix.encode().startswith(tokenizer.decode_bytes(sample.ids[2:at]))
    long = fim_sample(Cut("", long_text, ""), tokenizer, marks, 100, "psm")
    assert len(long.ids) <= 100 and long.ids[-1] != marks.end


def test_rows_have_one_shape_and_depend_on_their_index_alone(plain: Path, documents: Sequence[Document]) -> None:
    model = make(plain)
    stream = AdaptStream(documents, model.tokenizer, model.sentinels, seed=3)
    rows = stream.batch(5, 40, LENGTH)
    assert rows.ids.shape == rows.labels.shape == rows.weights.shape == (40, LENGTH)
    again = AdaptStream(documents, model.tokenizer, model.sentinels, seed=3).batch(5, 40, LENGTH)
    assert torch.equal(rows.ids, again.ids) and torch.equal(rows.weights, again.weights)
    assert torch.equal(rows.ids[:, 1:], rows.labels[:, :-1])
    assert not torch.equal(
        rows.ids, AdaptStream(documents, model.tokenizer, model.sentinels, seed=4).batch(5, 40, LENGTH).ids
    )
    filled = rows.ids == model.sentinels.middle
    assert filled.sum() >= 30


def test_it_learns_and_a_resumed_run_repeats_the_undisturbed_one(
    plain: Path, documents: Sequence[Document], tmp_path: Path
) -> None:
    whole = AdaptRun(make(plain), recipe())
    stream = AdaptStream(documents, whole.model.tokenizer, whole.model.sentinels, seed=0)
    before = whole.score(stream)
    assert adapt(whole, stream, stream, tmp_path / "whole.ckpt")
    after = whole.state.history[-1]
    assert after["middle"] < before["middle"] and after["end"] < before["end"] - 1.0
    assert whole.state.tokens == STEPS * ROWS * LENGTH
    half = AdaptRun(make(plain), recipe())
    while half.state.step < STEPS // 2:
        half.step(stream)
    save_checkpoint(tmp_path / "half.ckpt", half.state_dict())
    rest = AdaptRun(make(plain), recipe())
    assert adapt(rest, stream, None, tmp_path / "half.ckpt", resume=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, rest.model.state_dict()[name]), name


def test_an_exported_adapter_is_pefts_and_says_how_it_fills_in(
    plain: Path, documents: Sequence[Document], tmp_path: Path
) -> None:
    run = AdaptRun(make(plain), recipe(3))
    stream = AdaptStream(documents, run.model.tokenizer, run.model.sentinels, seed=0)
    adapt(run, stream, None, tmp_path / "a.ckpt", on_checkpoint=lambda run: run.model.export(tmp_path / "out", "card"))
    (tmp_path / "whole").mkdir()
    merge(plain, tmp_path / "out", tmp_path / "whole", "0" * 64)
    template = find_template(TextTokenizer.from_folder(tmp_path / "whole"))
    assert isinstance(template, FimTemplate) and template.order == "spm"
    marks = run.model.sentinels
    assert (template.prefix_id, template.suffix_id, template.middle_id) == (marks.prefix, marks.suffix, marks.middle)
    network = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(plain), str(tmp_path / "out"))
    merged = network.merge_and_unload()
    run.model.load_state_dict(read_adapter(tmp_path / "out", run.model.sentinels))  # rounded as in the file
    rows = stream.batch(0, 2, 64)
    logits = merged(input_ids=rows.ids).logits
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows.labels.flatten(), reduction="none")
    theirs = (nats * rows.weights.flatten()).sum() / rows.weights.sum()
    assert torch.allclose(run.model.compute_loss(rows).loss, theirs, rtol=1e-4)


def test_a_start_of_another_rank_is_refused(plain: Path, tmp_path: Path) -> None:
    make(plain, rank=2).export(tmp_path / "other", "card")
    marks = make(plain).sentinels
    with pytest.raises(TrainingError, match="give the same model and --rank"):
        make(plain).load_state_dict(read_adapter(tmp_path / "other", marks))
    with pytest.raises(TrainingError, match="has other sentinels: name its own"):
        read_adapter(tmp_path / "other", Sentinels(1, 2, 3, 4))
    (tmp_path / "other" / "adapter_model.safetensors").unlink()
    with pytest.raises(TrainingError, match="holds no adapter_model"):
        read_adapter(tmp_path / "other", marks)


def test_a_checkpoint_of_other_sentinels_is_refused(plain: Path) -> None:
    first = AdaptRun(make(plain), recipe())
    with pytest.raises(TrainingError, match="belongs to another model, rank or choice of sentinels"):
        AdaptRun(make(plain, sentinels=tuple(UNUSED[:4])), recipe()).load_state_dict(first.state_dict())
