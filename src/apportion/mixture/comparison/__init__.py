"""The parts of `apportion.mixture.compare`: what is held out, rivals, scores and the verdict."""
