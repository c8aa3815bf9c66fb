"""How drafters are made: the target's own answers, its hidden states, one recipe a method."""
