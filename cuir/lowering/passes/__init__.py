"""Passes: functions of a file each that change the tile IR in place and keep it valid. `pipeline` lists them in order."""
