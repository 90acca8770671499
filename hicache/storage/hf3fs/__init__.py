"""Pages in plain files, or files of 3FS, and a service that says which page is whose."""
