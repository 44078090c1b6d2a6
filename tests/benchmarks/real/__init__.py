"""Real data: the default path of the package beside EM and k-means of scikit-learn on all rows."""
