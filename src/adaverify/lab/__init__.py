"""Instruments: is the output exact, is the estimator any good, what does it bring."""
