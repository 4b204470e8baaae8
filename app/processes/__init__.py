"""The processes of one home: what starts them and keeps them running, and what each of them runs."""
