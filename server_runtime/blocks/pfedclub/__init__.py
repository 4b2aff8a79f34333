"""The maths of pFedClub alone: which blocks may stand in for which, and stitches between them."""
