"""Speech recognition models: loading, vocabularies, export."""
