"""URL of the list of a run's groups."""

from django.urls import path

from apps.runs import views

urlpatterns = [path("runs/<uuid:pk>/groups/", views.groups, name="groups")]
