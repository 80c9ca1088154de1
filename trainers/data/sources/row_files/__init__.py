"""Files of many rows: the driver reads their transcripts; the node that prepares a row reads its recording."""
