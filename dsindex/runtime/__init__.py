"""What every job that writes goes through: frame, plan, work folder, ledger, stages, publishing."""
