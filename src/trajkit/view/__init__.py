"""Job 3: which tokens train? One view model, and the faces it is shown with."""
