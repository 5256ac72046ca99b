"""The stages that every writing job shares: plan, work folder, journal, shards, merge, publishing."""
