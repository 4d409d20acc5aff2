"""The parts of `apportion.mixture.diagnose`: one question each."""
