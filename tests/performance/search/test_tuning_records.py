"""Records by architecture, program, dtype, head dim and shape class; the nearest class serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import Program, parse, tuned
from cuir.performance.search import shape_class
from cuir.performance.search import tuning_records as cache
from cuir.performance.search.tuning_records import Key
from cuir.performance.timing.problem import Shape
from tests.performance.search.fakes import TEXT

ARCH = "NVIDIA H200 sm_90 132"
lengths = st.integers(1, 1 << 17)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "device", lambda: (ARCH, 132))
    return tmp_path


def keep(program: Program, shape: Shape, dtype: str = "f16", **consts: int) -> None:
    cache.store_best(Key.of(ARCH, program, dtype, shape), shape_class(shape, 132), {"consts": consts})


SHAPE = Shape(16, 32, 32, 1024, 1024, 128)


def test_what_was_kept_is_found(program: Program) -> None:
    assert tuned(program, SHAPE) == {}
    keep(program, SHAPE, BM=64, BN=96)
    assert tuned(program, SHAPE.as_tuple()) == {"BM": 64, "BN": 96}
    assert tuned(program, Shape(17, 32, 32, 1000, 1100, 128)) == {"BM": 64, "BN": 96}, "the same class"
    keep(program, SHAPE, BM=128, BN=64)
    assert tuned(program, SHAPE) == {"BM": 128, "BN": 64}, "the newer one"


def test_another_program_dtype_or_head_dim_has_its_own(program: Program) -> None:
    keep(program, SHAPE, BM=64, BN=96)
    second = parse(TEXT.replace("return k <= q + (N - M)", "return k <= q"))
    assert tuned(second, SHAPE) == {} and tuned(program, SHAPE, "bf16") == {} and tuned(program, Shape(16, 32, 32, 1024, 1024, 64)) == {}


def test_values_of_another_head_dim_have_their_own(program: Program) -> None:
    keep(program, SHAPE, BM=64, BN=96)
    wide = Shape(16, 32, 32, 1024, 1024, 192, 128)
    assert tuned(program, wide) == {}
    keep(program, wide, BM=192, BN=80, QBUF=1)
    assert tuned(program, wide.as_tuple()) == {"BM": 192, "BN": 80, "QBUF": 1}
    assert tuned(program, Shape(16, 32, 32, 1024, 1024, 192)) == {} and tuned(program, SHAPE) == {"BM": 64, "BN": 96}


def test_float32_and_tf32_have_their_own() -> None:
    """PARTS says what is computed; left out, it is as in the signature."""
    single = parse(corpus.kernels()[corpus.expert("f32")].read_text(encoding="utf-8"))
    for parts, BN in ((1, 64), (2, 32)):
        key = Key.of(ARCH, single, "f32", SHAPE, {"PARTS": parts})
        cache.store_best(key, shape_class(SHAPE, 132), {"consts": {"BN": BN}})
    assert [tuned(single, SHAPE, "f32", {"PARTS": parts}) for parts in (1, 2)] == [{"BN": 64}, {"BN": 32}]
    assert tuned(single, SHAPE, "f32") == {"BN": 32}


def test_the_nearest_class_serves(program: Program) -> None:
    keep(program, SHAPE, BM=64, BN=64)
    keep(program, Shape(2, 32, 32, 8192, 8192, 128), BM=128, BN=128)
    assert tuned(program, Shape(1, 32, 32, 16384, 16384, 128)) == {"BM": 128, "BN": 128}
    assert tuned(program, Shape(8, 32, 32, 2048, 2048, 128)) == {"BM": 64, "BN": 64}
    assert tuned(program, Shape(1, 1, 1, 1, 1, 128)) == {}, "too far from both"


def test_a_setting_that_does_not_fit_any_more_is_not_used(program: Program) -> None:
    keep(program, SHAPE, BM=192, BN=176)
    assert tuned(program, SHAPE) == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', '{"a": {"class": [1]}}'])
def test_a_spoilt_file_is_as_none(program: Program, text: str) -> None:
    keep(program, SHAPE, BM=64)
    (file,) = cache.folder().glob("*.json")
    file.write_text(text, encoding="utf-8")
    assert tuned(program, SHAPE) == {}


@given(lengths, lengths, st.integers(1, 64), st.sampled_from([1, 2, 8]))
def test_classes_are_near_for_near_shapes(m: int, n: int, b: int, group: int) -> None:
    item = shape_class(Shape(b, 8 * group, 8, m, n, 64), 132)
    assert item.distance(item) == 0 and item == shape_class(Shape(b, 8 * group, 8, m, n, 128), 132)
    assert item.distance(shape_class(Shape(b, 8 * group, 8, 2 * m, n, 64), 132)) <= 3
    assert shape_class(Shape(b, 8 * group, 8, m, n, 64), 132).group == group


def test_every_kernel_of_the_corpus_has_its_own_fingerprint() -> None:
    prints = [cache.compute_fingerprint(parse(p.read_text(encoding="utf-8"))) for p in corpus.kernels().values()]
    assert len(prints) == len(set(prints))
