"""What the pages share: the script of a session, the bar, acting, signing in, the step chart."""
