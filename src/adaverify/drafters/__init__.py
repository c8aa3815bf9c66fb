"""Drafting methods, one file each, behind one base class."""
