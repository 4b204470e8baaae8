-- Statistics that are about to be written again. Grain: one row per training record and pair. Inputs: incoming (Arrow: place).
DELETE FROM statistics WHERE rowid IN (SELECT place FROM incoming)
