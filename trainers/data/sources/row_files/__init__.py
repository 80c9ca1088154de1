"""Reads files of many rows: the driver reads transcripts; the node that prepares a row reads its recording."""
