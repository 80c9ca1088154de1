"""Speech recognition models: families, processors and vocabularies, loading, export."""
