"""What several tests need: small networks, data sets, runs and sites."""
