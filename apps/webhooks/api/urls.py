"""URLs of webhooks below /api/v1/."""

from django.urls import path

from apps.webhooks.api import views

urlpatterns = [
    path("webhooks/", views.WebhookList.as_view(), name="api-webhooks"),
    path("webhooks/<uuid:pk>/", views.WebhookDetail.as_view(), name="api-webhook"),
    path("webhooks/<uuid:pk>/rotate/", views.WebhookRotate.as_view(), name="api-webhook-rotate"),
    path("webhooks/<uuid:pk>/test/", views.WebhookTest.as_view(), name="api-webhook-test"),
    path("webhooks/<uuid:pk>/deliveries/", views.DeliveryList.as_view(), name="api-webhook-deliveries"),
    path("webhook-deliveries/<uuid:pk>/", views.DeliveryDetail.as_view(), name="api-webhook-delivery"),
    path("webhook-deliveries/<uuid:pk>/redeliver/", views.DeliveryRedeliver.as_view(), name="api-webhook-redeliver"),
]
