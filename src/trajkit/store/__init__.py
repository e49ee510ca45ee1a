"""The Parquet door: the only room that opens, writes or describes a Parquet file."""
