"""What methods can be told, apart from the methods: read and checked without torch."""
