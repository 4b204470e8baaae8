"""Reports as one HTML file each: no script, no network, readable on a phone, in the dark and by a screen reader."""
