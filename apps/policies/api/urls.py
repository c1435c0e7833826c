"""URLs of base models, policies and channels below /api/v1/."""

from django.urls import path

from apps.policies.api import views

urlpatterns = [
    path("base-models/", views.BaseModelList.as_view(), name="api-base-models"),
    path("base-models/<slug:slug>/", views.BaseModelDetail.as_view(), name="api-base-model"),
    path("policies/", views.PolicyList.as_view(), name="api-policies"),
    path("policies/<uuid:pk>/", views.PolicyDetail.as_view(), name="api-policy"),
    path("channels/", views.ChannelList.as_view(), name="api-channels"),
    path("channels/<slug:project>/<slug:name>/", views.ChannelDetail.as_view(), name="api-channel"),
    path("channels/<slug:project>/<slug:name>/rollback/", views.ChannelRollback.as_view(), name="api-rollback"),
]
