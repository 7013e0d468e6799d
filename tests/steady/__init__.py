"""Do tests with a bound of wall time hold on a machine that has other things to do? `make steady` asks."""
