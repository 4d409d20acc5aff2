"""The parts of `apportion.mixture.optimize`: objectives, bounds, solvers, baselines and gains."""
