"""What every job that writes goes through: plan, work folder, journal, shards, merge, publishing."""
