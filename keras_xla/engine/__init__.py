"""Padded, fixed-shape, XLA-compiled generation over the Decoder protocol; knows no architecture."""
