-- How much of the store's file is in use, in bytes; blocks that were freed are used again first. Grain: one row.
SELECT (used_blocks * block_size)::BIGINT AS bytes, (free_blocks * block_size)::BIGINT AS free_bytes FROM pragma_database_size()
