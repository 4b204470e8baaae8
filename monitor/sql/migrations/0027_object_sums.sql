-- Objects are read in parts, and the checksum in their name is of all of one.
ALTER TABLE raw_files ADD COLUMN sums UINTEGER[];  -- of an object: CRC-32 of each 128 KiB; null: not known
