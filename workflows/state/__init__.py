"""Everything that a job keeps on disk: inputs, identity, work folder, ledger, lock, manifest, outputs."""
