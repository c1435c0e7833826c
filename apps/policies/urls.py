"""URLs of the pages of policies and channels."""

from django.urls import path

from apps.policies import views

urlpatterns = [
    path("policies/", views.policies, name="policies"),
    path("channels/<slug:project>/<slug:name>/", views.channel, name="channel"),
]
