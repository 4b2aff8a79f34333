"""The methods that the five leading ones are compared with."""
