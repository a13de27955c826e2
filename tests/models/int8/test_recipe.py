"""Rotation and rounding of a matrix in pieces, with the same result as whole."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from codespec.models.int8 import recipe
from codespec.models.int8.recipe import HEAD_SEED, Sizes, convert_tensors, plan_tensors, stream_rotation
from codespec.models.int8.rotation import Rotation, unmix_columns
from codespec.models.int8.source import read_whole

HIDDEN, INNER, HEAD, VOCABULARY = 48, 160, 16, 70
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"


class Drawn:
    """Random weights of one layer, read a few rows at a time."""

    def __init__(self, rows: int = 7) -> None:
        generator = torch.Generator().manual_seed(0)
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
        shapes |= {f"{ATTENTION}.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{MLP}.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{MLP}.down_proj.weight"] = (HIDDEN, INNER)
        names = ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm")
        shapes |= {f"{name}.weight": (HIDDEN,) for name in names}
        self.values = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        self.rows, self.alive = rows, list[weakref.ref[Tensor]]()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.values.items()}

    def pieces(self, name: str) -> Iterator[Tensor]:
        for rows in self.values[name].split(self.rows):
            piece = rows.clone()
            self.alive.append(weakref.ref(piece))
            yield piece


def test_a_weight_is_not_held_twice() -> None:
    drawn, most = Drawn(), list[int]()

    def note(piece: Tensor) -> Tensor:
        most.append(sum(reference() is not None for reference in drawn.alive))
        return 2 * piece

    name = f"{MLP}.down_proj.weight"
    assert torch.equal(read_whole(drawn, name, note), 2 * drawn.values[name])
    assert len(most) == 7 and max(most) <= 2


@pytest.mark.parametrize("piece", [1, 640, 1 << 22])
def test_matrices_that_write_to_the_stream_are_turned_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "PIECE", piece)
    drawn, sizes = Drawn(), Sizes(HIDDEN, 1, HEAD, tied=True)
    made: dict[str, Tensor] = {}
    for name, part in convert_tensors(drawn, sizes, 127):
        made[name] = torch.cat([made[name], part]) if name in made else part
    assert [(name, part.dtype, tuple(part.shape)) for name, part in made.items()] == plan_tensors(drawn, sizes)
    heads = Rotation(HEAD, HEAD_SEED)
    out, down = drawn.values[f"{ATTENTION}.o_proj.weight"], drawn.values[f"{MLP}.down_proj.weight"]
    turned = {
        f"{ATTENTION}.out": heads.turn(out.view(HIDDEN, -1, HEAD)).view(out.shape),
        f"{MLP}.down": unmix_columns(down),
    }
    for name, matrix in turned.items():
        scale = made[f"{name}.scale"][:, None]
        gap = (made[f"{name}.weight"] * scale - stream_rotation(HIDDEN).turn_outputs(matrix)).abs()
        assert bool((gap <= 0.501 * scale).all())
