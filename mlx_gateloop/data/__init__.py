"""Training texts and their batches."""

from mlx_gateloop.data.corpus import Corpus, load_corpus, load_documents
from mlx_gateloop.data.documents import Document, num_bytes, texts
from mlx_gateloop.data.packing import Batches, Stream, in_order, pack

__all__ = [
    "Batches", "Corpus", "Document", "Stream", "in_order", "load_corpus",
    "load_documents", "num_bytes", "pack", "texts",
]  # fmt: skip
