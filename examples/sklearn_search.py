"""A config as an estimator of scikit-learn: a grid search over its fields in a pipeline.

`python examples/sklearn_search.py`
"""

from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from jaxreg import train

x, y = load_wine(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, stratify=y, random_state=0)

config = train.base_config()
config.method.name = "label_smoothing"
config.model.MLP.widths = (32,)
config.batch_size, config.epochs = 16, 20
config.data.validation_fraction = 0.2

pipeline = make_pipeline(StandardScaler(), train.Estimator(config))
grid = {"estimator__optimizer.learning_rate": [1e-5, 1e-2]}
search = GridSearchCV(pipeline, grid, cv=2).fit(x_train, y_train)
accuracy = search.score(x_test, y_test)
print(f"{accuracy:.1%} of the test wines are right with {search.best_params_}")
