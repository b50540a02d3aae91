"""Indexed datasets against megatron.core.datasets, both ways, all token types."""

import json

import numpy
import pytest
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder

TYPES = [kind.name for kind in DType]


def documents_of(kind):
    """Documents of ugly lengths whose tokens reach the ends of what the type holds exactly."""
    if kind.startswith("float"):
        most = 2 ** (24 if kind == "float32" else 53)
        least = -most
    else:
        least, most = int(numpy.iinfo(kind).min), int(numpy.iinfo(kind).max)
    return [[1, 2, 3], [], [least, 0, most], [5], [i % 100 for i in range(997)]]


def test_all_types_are_known_there():
    assert sorted(TYPES) == sorted(["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"])


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("kind", TYPES)
def test_ours_are_read_by_megatron(kind, mmap, tmp_path, run_program):
    documents = documents_of(kind)
    (tmp_path / "documents.json").write_text(json.dumps(documents))
    run_program("tests/dataset_program", "write", tmp_path / "d", kind, tmp_path / "documents.json")
    dataset = IndexedDataset(str(tmp_path / "d"), mmap=mmap)
    assert dataset.index.dtype == numpy.dtype(kind).type
    assert dataset.document_indices.tolist() == list(range(len(documents) + 1))
    assert [dataset[i].tolist() for i in range(len(dataset))] == documents


@pytest.mark.parametrize("kind", TYPES)
def test_megatrons_are_read_here(kind, tmp_path, run_program):
    documents = documents_of(kind)
    builder = IndexedDatasetBuilder(str(tmp_path / "d.bin"), dtype=numpy.dtype(kind).type)
    for document in documents:
        builder.add_document(numpy.array(document, dtype=kind), [len(document)])
    builder.finalize(str(tmp_path / "d.idx"))
    found = json.loads(run_program("tests/dataset_program", "read", tmp_path / "d").stdout)
    assert found == {"type": kind, "documents": documents}


def test_documents_of_several_sequences_are_joined(tmp_path, run_program):
    builder = IndexedDatasetBuilder(str(tmp_path / "d.bin"), dtype=numpy.int32)
    builder.add_document(numpy.arange(10), [3, 0, 7])
    for length in (2, 5):
        builder.add_item(torch.arange(length))
    builder.end_document()
    builder.end_document()  # a document without sequences
    builder.finalize(str(tmp_path / "d.idx"))
    found = json.loads(run_program("tests/dataset_program", "read", tmp_path / "d").stdout)
    assert found["documents"] == [list(range(10)), [0, 1, 0, 1, 2, 3, 4], []]


def test_the_same_documents_give_the_same_bytes(tmp_path, run_program):
    documents = documents_of("uint16")
    (tmp_path / "documents.json").write_text(json.dumps(documents))
    run_program("tests/dataset_program", "write", tmp_path / "ours", "uint16", tmp_path / "documents.json")
    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=numpy.uint16)
    for document in documents:
        builder.add_document(numpy.array(document, dtype=numpy.uint16), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for end in (".bin", ".idx"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()


@pytest.mark.parametrize("end", [".bin", ".idx"])
def test_truncated_pairs_are_one_clear_line(end, tmp_path, run_program):
    builder = IndexedDatasetBuilder(str(tmp_path / "d.bin"), dtype=numpy.int32)
    builder.add_document(numpy.arange(10), [10])
    builder.finalize(str(tmp_path / "d.idx"))
    path = tmp_path / f"d{end}"
    path.write_bytes(path.read_bytes()[:-1])
    done = run_program("tests/dataset_program", "read", tmp_path / "d", check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and str(tmp_path / "d.idx") in done.stderr and "truncated" in done.stderr
