"""URLs of the pages of runs."""

from django.urls import path

from apps.metrics import views

urlpatterns = [
    path("runs/", views.runs, name="runs"),
    path("runs/<uuid:pk>/", views.run, name="run"),
]
