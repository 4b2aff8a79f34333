"""What a device says about its data, made on the device."""
