"""Kinds and amounts of operator calls, counted by hand."""

import pytest

from fedwright.protocol.operator_costs import FEATURES, features


def amounts_of(op: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]]) -> tuple[str, dict[str, float]]:
    kind, amounts = features(op, inputs, outputs)
    return kind, dict(zip(FEATURES, amounts, strict=True))


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "kind", "flops"),
    [
        # 2 * batch 4 * 8 filters * 64 places * (3 channels * 9 taps)
        pytest.param("Conv", [(4, 3, 8, 8), (8, 3, 3, 3)], [(4, 8, 8, 8)], "Conv", 2 * 4 * 8 * 64 * 27, id="conv"),
        pytest.param(
            "Conv", [(4, 8, 8, 8), (8, 1, 3, 3)], [(4, 8, 8, 8)], "Conv depthwise", 2 * 4 * 8 * 64 * 9, id="depthwise"
        ),
        pytest.param(
            "FusedConv", [(1, 3, 4, 4), (16, 3, 1, 1)], [(1, 16, 4, 4)], "Conv 1x1", 2 * 16 * 16 * 3, id="1x1"
        ),
        pytest.param("Gemm", [(5, 7), (7, 16)], [(5, 16)], "Gemm", 2 * 5 * 7 * 16, id="gemm"),
        pytest.param("Gemm", [(7, 5), (7, 16)], [(5, 16)], "Gemm", 2 * 5 * 7 * 16, id="gemm, transposed"),
        # Ten columns cost as much as sixteen.
        pytest.param("MatMul", [(5, 7), (7, 10)], [(5, 10)], "MatMul", 2 * 5 * 7 * 16, id="padded columns"),
        pytest.param("MatMul", [(2, 3, 4), (2, 4, 16)], [(2, 3, 16)], "MatMul many", 2 * 6 * 4 * 16, id="many"),
        pytest.param("Mul", [(4, 4), (4,)], [(4, 4)], "Mul broadcast", 0, id="broadcast"),
        pytest.param("Mul", [(4, 4), ()], [(4, 4)], "Mul", 0, id="by a number"),
        pytest.param("ReduceSum", [(4, 6)], [(1, 6)], "ReduceSum rows", 0, id="rows"),
        pytest.param("ReduceSum", [(4, 6)], [(4, 1)], "ReduceSum columns", 0, id="columns"),
        pytest.param("ReduceSum", [(8,)], [()], "ReduceSum all", 0, id="all"),
        pytest.param("MatMul", [(5, 7)], [(5, 16)], "MatMul", 2 * 5 * 7 * 16, id="a constant that is packed already"),
        pytest.param("MatMul", [(6, 1, 9), (6, 9, 1)], [(6, 1, 1)], "MatMul many row", 2 * 6 * 9, id="one row each"),
        pytest.param("Conv", [(4, 6, 32), (8, 6, 5)], [(4, 8, 32)], "Conv series", 2 * 4 * 8 * 32 * 30, id="series"),
        pytest.param(
            "Conv", [(4, 3, 8, 8), (8, 3, 3, 3)], [(4, 8, 4, 4)], "Conv apart", 2 * 4 * 8 * 16 * 27, id="strided"
        ),
        pytest.param("Reshape", [(4, 6)], [(24,)], "shape", 0, id="reshape"),
        # 5 steps, batch 2, 8 units with four gates each; what it reads has its steps on the second axis.
        pytest.param(
            "Scan", [(8, 2), (32, 5, 2)], [(8, 2), (5, 2, 8), (5, 8, 2)], "Scan", 2 * 5 * 2 * 32 * 8, id="scan"
        ),
        pytest.param(
            "Scan", [(8, 2), (5, 2, 8), (5, 8, 2)], [(8, 2), (32, 5, 2)], "Scan back", 2 * 5 * 2 * 32 * 8, id="back"
        ),
    ],
)
def test_features_by_hand(
    op: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], kind: str, flops: int
) -> None:
    found, amounts = features(op, inputs, outputs)

    assert found == kind
    assert dict(zip(FEATURES, amounts, strict=True))["flops"] == pytest.approx(flops)


def test_features_count_what_is_read_and_written() -> None:
    _, amounts = features("Add", [(300, 1000), (300, 1000)], [(300, 1000)])

    values = dict(zip(FEATURES, amounts, strict=True))
    assert (values["calls"], values["elements"]) == (1, 900_000)
    assert (values["spill"], values["flood"]) == (900_000 - 65_536, 900_000 - 524_288)


def test_a_product_packs_whole_tiles_of_each_matrix() -> None:
    _, found = amounts_of("FusedMatMul", [(64, 3, 784), (64, 1, 784)], [(64, 3, 1)])

    assert found["calls"] == 64
    assert found["inner"] == 64 * 16 * 784


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "kind", "pieces"),
    [
        pytest.param("Transpose", [(2, 3, 4)], [(3, 2, 4)], "Transpose 3 kept", 6, id="rows of four move together"),
        pytest.param("Transpose", [(2, 3, 4)], [(2, 4, 3)], "Transpose 3", 24, id="entry by entry"),
        pytest.param("Transpose", [(8, 8, 3, 3)], [(8, 8, 3, 3)], "Transpose 4 kept", 64, id="the larger pair turns"),
        pytest.param("Transpose", [(2, 8, 8)], [(2, 8, 8)], "Transpose 3", 128, id="a pair at the end"),
        pytest.param("Slice", [(2, 5, 6), (1,), (1,), (1,)], [(2, 3, 6)], "Slice", 2, id="18 lie side by side"),
        pytest.param("Slice", [(2, 5, 6), (1,), (1,), (1,)], [(2, 5, 4)], "Slice", 10, id="a part of each row"),
        pytest.param("Slice", [(2, 6), (1,), (1,), (1,), (1,)], [(2, 3)], "Slice apart", 6, id="every other entry"),
        pytest.param("Slice", [(2, 6), (1,), (1,), (1,), (1,)], [(1, 6)], "Slice apart", 1, id="every other row"),
        pytest.param("Concat", [(2, 3, 4), (2, 5, 4)], [(2, 8, 4)], "Concat", 64 / 12, id="pieces of the first"),
        pytest.param("Mul", [(2, 3, 8), (2, 3, 1)], [(2, 3, 8)], "Mul broadcast", 6, id="a number per row"),
        pytest.param("Mul", [(2, 3, 8), (8,)], [(2, 3, 8)], "Mul broadcast", 6, id="the same row again"),
        pytest.param("Add", [(2, 3, 4, 4), (1, 3, 1, 1)], [(2, 3, 4, 4)], "Add broadcast", 6, id="a number per plane"),
        pytest.param("Add", [(2, 8), (2, 8)], [(2, 8)], "Add", 0, id="alike"),
        pytest.param("LayerNormalization", [(2, 3, 8), (8,), (8,)], [(2, 3, 8)], "LayerNormalization", 6, id="rows"),
        pytest.param("Relu", [(2, 3)], [(2, 3)], "Relu", 0, id="one piece"),
    ],
)
def test_pieces_by_hand(
    op: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], kind: str, pieces: float
) -> None:
    found, amounts = amounts_of(op, inputs, outputs)

    assert found == kind
    assert amounts["repeats"] == pytest.approx(pieces)
