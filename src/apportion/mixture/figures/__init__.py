"""The parts of `apportion.mixture.plot` and `apportion.mixture.sections`: one subject each."""
