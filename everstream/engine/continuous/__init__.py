"""Long-running workers that exchange frames: shared by the engines that place them in different ways."""
